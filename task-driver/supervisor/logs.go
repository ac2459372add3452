package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// logs are the two outputs of a task. hold keeps a read end of each FIFO open: a task must not be killed by
// SIGPIPE while Nomad's log collector is being restarted; it waits when the pipe is full instead.
type logs struct {
	stdout, stderr *os.File
	hold           []*os.File
}

func openLogs(stdout, stderr string, wait time.Duration) (*logs, error) {
	l := &logs{}
	deadline := time.Now().Add(wait)
	for _, one := range []struct {
		path string
		file **os.File
	}{{stdout, &l.stdout}, {stderr, &l.stderr}} {
		file, hold, err := openLog(one.path, deadline)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open log %s: %w", one.path, err), l.Close())
		}
		*one.file = file
		if hold != nil {
			l.hold = append(l.hold, hold)
		}
	}
	return l, nil
}

var (
	errNoReader    = errors.New("no log collector reads it")
	errInterrupted = errors.New("interrupted by a signal")
)

// HoldLog opens an output beside its supervisor, so that the log collector does not take a supervisor's death for the
// end of the task. It returns nil for an output that nobody reads or that is no FIFO.
func HoldLog(path string) *os.File {
	file, reader, err := openLog(path, time.Time{})
	if err != nil {
		return nil
	}
	if reader == nil || reader.Close() != nil {
		closeQuietly(file)
		return nil
	}
	return file
}

func closeQuietly(f *os.File) {
	if err := f.Close(); err != nil {
		return // closed before
	}
}

// openLog opens one output without following a link, since the task owns the folder it is in. A FIFO is opened
// only once its reader is there: what is written before is lost when the task ends at once.
func openLog(path string, deadline time.Time) (file, hold *os.File, err error) {
	if path == "" {
		path = os.DevNull
	}
	for {
		if file, err = openWriter(path); err == nil {
			break
		}
		if errors.Is(err, errNoReader) && time.Now().Before(deadline) || errors.Is(err, errInterrupted) {
			pause()
			continue
		}
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	if info.Mode()&os.ModeNamedPipe == 0 {
		return file, nil, nil
	}
	if hold, err = openReader(path); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, hold, nil
}

// Close ends both outputs, which the log collector takes for the end of the task.
func (l *logs) Close() error {
	var errs []error
	for _, f := range append([]*os.File{l.stdout, l.stderr}, l.hold...) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
