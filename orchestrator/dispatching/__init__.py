"""The dispatcher process: turns events into deliveries and notifications, and sends them.

Any number of processes run. One at a time moves the position in the feed, under an advisory lock. All of them send. A
delivery is a row with a claim in time. If a process is killed, another one sends it again, under the same id.
"""
