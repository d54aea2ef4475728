import atexit
import os
import shutil
import sys
import tempfile

# A compile cache of their own: compiling is part of what is tested.
_cache = tempfile.mkdtemp(prefix="libgma-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
