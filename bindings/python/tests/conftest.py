import atexit
import os
import shutil
import sys
import tempfile

# Compiled graphs hold sizes that the library told; its cache on disk knows nothing of the library's version.
_cache = tempfile.mkdtemp(prefix="libgma-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
