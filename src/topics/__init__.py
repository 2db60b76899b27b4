"""topics: a persistent event engine for one machine, with a JSON API over HTTP."""

RELEASE = "0.2.0.dev0"  # the next release, with `.dev0` until it is one

try:  # only wheels have it: the release and the commit
    from topics._build import VERSION  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ImportError:
    VERSION = RELEASE

__version__: str = VERSION
