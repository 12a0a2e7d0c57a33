"""Plays a game in a terminal: `terminal.py HOST PORT`. Keys go to the game as they are pressed, until it ends the connection;
Ctrl-C is `q`, and a second one ends this at once."""

import os
import select
import socket
import sys
import termios
import tty

stream = socket.create_connection((sys.argv[1], int(sys.argv[2])))
keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
before = termios.tcgetattr(keyboard)
left = False
try:
    tty.setcbreak(keyboard)
    stream.sendall(b"ansi\n")
    while True:
        try:
            ready = select.select([keyboard, stream], [], [])[0]
            if stream in ready:
                picture = stream.recv(65536)
                if not picture:
                    break
                os.write(screen, picture)
            if keyboard in ready:
                stream.sendall(os.read(keyboard, 1024))
        except KeyboardInterrupt:
            if left:
                break
            left = True
            stream.sendall(b"q")
finally:
    termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
