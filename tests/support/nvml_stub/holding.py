"""A module for suites under test: have the pretended NVIDIA driver list this process with memory on its GPU."""

HOLDING = '''
import contextlib, fcntl, os, time

@contextlib.contextmanager
def held(mb, pid=None):
    """Hold so many MB of the first leased GPU until it was seen; -1 for memory that the driver does not report."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0]
    with change() as lines:
        numbers = [line.split()[1] for line in lines if line.startswith("gpu ")]
        line = f"process {numbers.index(gpu)} -1 {pid or os.getpid()} {mb} compute"
        lines.append(line)
    wait_for_questions()
    yield
    with change() as lines:
        lines.remove(line)

def wait_for_questions(number=6, limit_s=60.0):
    """Wait until the driver has been asked so often for processes: by the run, and before and after each file."""
    path = os.environ["NVML_STUB_FILE"] + ".asked"
    wanted, end = os.path.getsize(path) + number, time.monotonic() + limit_s
    while os.path.getsize(path) < wanted:
        assert time.monotonic() < end, "nobody asks for the processes on the GPU"
        time.sleep(0.02)

@contextlib.contextmanager
def change():
    """The lines of the driver's file, which no other test changes meanwhile."""
    path = os.environ["NVML_STUB_FILE"]
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = open(path).read().splitlines()
        yield lines
        with open(path + ".new", "w") as file:
            file.write("\\n".join(lines) + "\\n")
        os.replace(path + ".new", path)
'''
