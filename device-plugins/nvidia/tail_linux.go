package nvidia

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// A tail reads what is written to a file after it was opened, without ever waiting for more: a file of the kernel is read
// past Go's own poller, which would wait. The zero value is a closed one.
type tail struct {
	fd     int
	opened bool
	buffer []byte
}

// open opens the file at its end, unless it is open.
func (t *tail) open(path string) bool {
	if t.opened {
		return true
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil && !errors.Is(err, unix.ESPIPE) {
		return errors.Join(err, unix.Close(fd)) == nil
	}
	t.fd, t.opened, t.buffer = fd, true, make([]byte, logChunk)
	return true
}

// next is what one call reads, one record of /dev/kmsg. It is valid until the next call. More is false when there is
// nothing more now; a file that fails is closed and opened anew by the next reading.
func (t *tail) next() (chunk []byte, more bool) {
	n, err := unix.Read(t.fd, t.buffer)
	switch {
	case err == nil:
		return t.buffer[:max(n, 0)], n > 0
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EINTR): // the record was overwritten, or is too long
		return nil, true
	case !errors.Is(err, unix.EAGAIN):
		t.opened = false
		_ = unix.Close(t.fd) // it was only read
	}
	return nil, false
}
