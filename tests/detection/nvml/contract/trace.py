"""One full sweep of the NVML child's, with what each call and each field answered, as JSON.

`python -m tests.detection.nvml.contract.trace LIBRARY`: a process of its own, because it loads
NVIDIA's library. LIBRARY is as the child's: for where the loader finds none by itself.
"""

import json
import sys

from hpctl.detection.nvml.child import AllGpusReader, start_nvml_session
from tests.gpu.nvml_trace import Calls, noting_driver


def main() -> None:
    calls = Calls()
    driver = noting_driver(calls)
    start_nvml_session(driver, sys.argv[1])
    snapshot = AllGpusReader(driver).read()
    json.dump({"snapshot": snapshot, "calls": calls.codes, "fields": calls.fields}, sys.stdout)


if __name__ == "__main__":
    main()
