//go:build !linux

package plain

// Supported says whether Server runs on this system.
const Supported = false

// watcher is told when clients leave, which this system does not do.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, ErrSystem }

func (*watcher) close() {}

func (*watcher) add(*conn) error { return ErrSystem }

func (*watcher) drop(*conn) {}
