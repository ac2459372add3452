package supervisor

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A process may end between the look at it and the signal: whoever destroys it has what was wanted.
func TestProc_SignalToOneThatHasJustEnded(t *testing.T) {
	t.Parallel()
	p := Proc{PID: 4242}
	if err := p.sent(unix.ESRCH); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("got %v", err)
	}
	if err := p.sent(unix.EPERM); !errors.Is(err, unix.EPERM) || errors.Is(err, os.ErrProcessDone) {
		t.Errorf("got %v", err)
	}
	if err := p.sent(nil); err != nil {
		t.Errorf("got %v", err)
	}
}
