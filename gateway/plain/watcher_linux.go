package plain

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Supported says whether Server runs on this system.
const Supported = true

// watcher is told by the system when clients leave, for all connections by one goroutine: to find it out by reading
// would take one for each request.
type watcher struct {
	file *os.File // an epoll, which itself is waited for as other files are
	raw  syscall.RawConn

	mu    sync.Mutex
	conns map[int32]*conn
	last  int32
}

func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "epoll"), conns: map[int32]*conn{}}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		return nil, err
	}
	go w.run()
	return w, nil
}

func (w *watcher) close() {
	w.file.Close() //nolint:errcheck // nobody is watched any more
}

// add begins to watch. It ends by itself when the connection is closed.
func (w *watcher) add(c *conn) error {
	w.mu.Lock()
	for w.conns[w.last] != nil || w.last == 0 {
		w.last++
	}
	c.id = w.last
	w.conns[c.id] = c
	w.mu.Unlock()
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	epoll, added := error(nil), error(nil)
	err = raw.Control(func(fd uintptr) {
		epoll = w.raw.Control(func(epfd uintptr) {
			// Once for each change, so that a connection costs a request nothing.
			added = unix.EpollCtl(int(epfd), unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: c.id})
		})
	})
	for _, e := range []error{err, epoll, added} {
		if e != nil {
			return e
		}
	}
	return nil
}

// drop forgets a connection.
func (w *watcher) drop(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[c.id] == c {
		delete(w.conns, c.id)
	}
}

// run tells connections until the watcher is closed.
func (w *watcher) run() {
	events := make([]unix.EpollEvent, 128)
	w.raw.Read(func(epfd uintptr) bool { //nolint:errcheck // it was closed
		for {
			n, err := unix.EpollWait(int(epfd), events, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return err != nil
			}
			for _, e := range events[:n] {
				w.mu.Lock()
				c := w.conns[e.Fd]
				w.mu.Unlock()
				if c != nil {
					c.left(e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0)
				}
			}
		}
	})
}
