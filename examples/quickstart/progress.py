"""Keep a fairseq command's output in a log file and show on screen how far the command is."""

import argparse
import re
import signal
import sys
import time

SECONDS_BETWEEN_LINES = 5


def value(name: str, line: str) -> str | None:
    """The number fairseq logs under this name, as in `loss=9.67, ups=0.76` or `loss 9.67 |`."""
    found = re.search(rf"\b{name}[ =]([0-9.e+-]+)", line)
    return found and found[1]


def training_line(line: str, total: int) -> str:
    """How far training is, from the values fairseq logs every few updates."""
    done, rate = int(value("num_updates", line)), float(value("ups", line))
    text = f"update {done} of {total}  loss {value('loss', line)}  lr {value('lr', line)}"
    if rate > 0:
        text += f"  about {(total - done) / rate / 60:.1f} min left"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", help="file that the lines of standard input are added to")
    parser.add_argument("total", type=int, help="updates or sentences to do")
    args = parser.parse_args()
    # Ctrl-C reaches every process of the terminal; this one must live to log the other's end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shown, translated = 0.0, 0
    with open(args.log, "a", encoding="utf-8") as log:
        for line in sys.stdin:
            log.write(line)
            log.flush()
            text = None
            if line.startswith("H-"):
                translated += 1
            elif translated and " wps=" in line:  # a batch is complete
                text = f"translated {translated} of {args.total}"
            elif "| train_inner |" in line:
                text = training_line(line, args.total)
            elif "| valid |" in line:
                print(f"  validation loss {value('loss', line)}", flush=True)
            if text and (time.monotonic() - shown >= SECONDS_BETWEEN_LINES):
                print("  " + text, flush=True)
                shown = time.monotonic()


if __name__ == "__main__":
    main()
