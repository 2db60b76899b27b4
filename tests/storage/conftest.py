from tests import profile

profile.load()
