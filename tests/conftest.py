"""What every test may use."""

pytest_plugins = ["tests.lab_fixture"]
