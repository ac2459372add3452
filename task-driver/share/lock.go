package share

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/filelock"
)

// locker keeps apart what must not happen at once, in this process and, for a driver that is being replaced, in two.
type locker interface {
	// lock waits for the lock of this name. The error says that ctx ended first, or that there can be no lock.
	lock(ctx context.Context, name string) (unlock func(), err error)
}

// fileLocks are locks on files of a folder. The kernel gives them back when their process dies.
type fileLocks struct {
	dir string
	log hclog.Logger
	mu  sync.Mutex
	own map[string]chan struct{} // one token each: within the process nobody polls
}

var _ locker = (*fileLocks)(nil)

func newFileLocks(dir string, log hclog.Logger) *fileLocks {
	return &fileLocks{dir: dir, log: log, own: map[string]chan struct{}{}}
}

// lockPoll is how often a lock that another process holds is tried.
const lockPoll = 20 * time.Millisecond

func (l *fileLocks) lock(ctx context.Context, name string) (func(), error) {
	token := l.token(name)
	select {
	case token <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another share of %s: %w", name, ctx.Err())
	}
	f, err := l.take(ctx, name)
	if err != nil {
		<-token
		return nil, err
	}
	return func() {
		if err := f.Close(); err != nil { // the lock goes with the descriptor, whatever Close says
			l.log.Warn("the file of a lock does not close", "lock", name, "error", err)
		}
		<-token
	}, nil
}

func (l *fileLocks) token(name string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own[name] == nil {
		l.own[name] = make(chan struct{}, 1)
	}
	return l.own[name]
}

// take locks the file of the name.
func (l *fileLocks) take(ctx context.Context, name string) (*os.File, error) {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make folder for locks: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(l.dir, "."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		taken, err := filelock.TryFile(f)
		if taken {
			return f, nil
		}
		if err == nil {
			select {
			case <-ctx.Done():
				err = fmt.Errorf("wait for another process of the driver: %w", ctx.Err())
			case <-time.After(lockPoll):
				continue
			}
		}
		if closeErr := f.Close(); closeErr != nil {
			return nil, fmt.Errorf("%w (%w)", err, closeErr)
		}
		return nil, err
	}
}
