"""The sandbox that the engines share, from the command line around a job to its end.

Four of its programs are written in Perl:

- `launcher.pl` and `reaper.pl` start once for each job, on its critical path. Medians of 60 starts in turns, on
  Debian 12 with two processors: Perl compiles the launcher in 4.9 ms and the reaper in 3.6 ms. Python (`-I -S`) starts
  in 7.2 ms, and in 15.8 ms with the modules that system calls need (`ctypes`, `socket`, `struct`, `os`). Under strace,
  where the launcher runs, Perl starts in 9 ms and Python in 26 ms. A Perl process holds 4.9 MB, Python 9.7 MB.
- `self_test.pl` and `self_test_limits.pl` run inside the sandbox when the worker starts. Only /usr is visible there,
  and the worker's Python may be anywhere. `perl-base` is an essential package: every Debian and Ubuntu has it in /usr.

All of them make system calls by number, which Perl's core can do without a module.
"""
