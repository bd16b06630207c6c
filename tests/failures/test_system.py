"""What the operating system and Python really raise has the right cause."""

import configparser
import errno
import gzip
import locale
import multiprocessing
import os
import resource
import signal
import subprocess

import pytest
from django.core.exceptions import ValidationError
from django.http import Http404

from jobqueue.failures import classify
from tests.failures.raising import check, raised
from tests.failures.real import system
from tests.patience import patient


@pytest.mark.parametrize("real", system.ERRNO, ids=str)
def test_the_number_of_an_error_of_the_system_decides(real, world):
    error = check(real, world)
    assert system.NUMBERS.get(real.how) in (None, error.errno)


def _write_too_much(path, conn):
    # In a process of its own: the limit holds for every file, the one that pytest writes its output into as well.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    def write():
        with open(path, "wb", buffering=0) as large:
            large.write(b"x" * 10)
            large.write(b"x" * 10)

    conn.send(raised(write))


def test_a_file_over_the_limit_of_its_size_is_a_resource(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_write_too_much, args=(tmp_path / "large", theirs))
    process.start()
    assert ours.poll(patient())
    error = ours.recv()
    process.join()
    assert (error.errno, classify(error)) == (errno.EFBIG, "resource")


@pytest.mark.parametrize("real", system.PATHS, ids=str)
def test_a_path_that_is_wrong_is_data(real, world):
    check(real, world)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EDQUOT, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_what_this_host_lacks_or_forbids_is_a_resource(number):
    assert classify(OSError(number, os.strerror(number))) == "resource"


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ETIMEDOUT])
def test_what_cannot_be_reached_is_a_dependency(number):
    assert classify(OSError(number, os.strerror(number))) == "dependency"


@pytest.mark.parametrize("real", system.LIMITS, ids=str)
def test_limits_of_python(real, world):
    check(real, world)


@pytest.mark.parametrize("real", system.VALUES, ids=str)
def test_data_that_does_not_fit_is_data(real, world):
    check(real, world)


@pytest.mark.parametrize("call", [lambda: gzip.decompress(b"xx"), lambda: configparser.ConfigParser().read_string("x")])
def test_a_file_of_another_format_is_data(call):
    assert classify(raised(call)) == "data"


def test_a_locale_that_this_host_lacks_is_a_resource():
    assert classify(raised(lambda: locale.setlocale(locale.LC_ALL, "xx_XX.no"))) == "resource"


@pytest.mark.parametrize(("command", "cause"), [("kill -9 $$", "resource"), ("exit 3", "unknown")])
def test_a_command_that_was_killed_lacked_resources_and_what_its_status_means_only_it_knows(command, cause):
    assert classify(raised(lambda: subprocess.run(["sh", "-c", command], check=True))) == cause


@pytest.mark.parametrize("error", [Http404(), ValidationError("x")])
def test_refusals_of_django_are_data(error):
    assert classify(error) == "data"
