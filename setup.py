"""Puts recipes/ into the package, as `leash_trl/recipes`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup


setup(
    packages=[*find_packages(include=["leash_trl*"]), "leash_trl.recipes"],
    package_dir={"leash_trl.recipes": "recipes"},
    package_data={
        "leash_trl": ["py.typed", "analysis/*.j2", "hub/*.j2", "gym/checkpoint/*"],
        "leash_trl.recipes": ["**/*.yaml"],
    },
)
