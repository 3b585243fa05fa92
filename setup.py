"""The build: copies configs/ into vit/configs, so that an installed wheel has them too."""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies the modules, then the configurations."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install reads the repository's
            shutil.copytree("configs", f"{self.build_lib}/vit/configs", dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConfigs})
