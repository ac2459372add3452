package driver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// imageRemover is what the keeper asks of a daemon.
type imageRemover interface {
	// RemoveImage removes an image that no container has; ErrImageInUse when one has.
	RemoveImage(ctx context.Context, id string) error
}

// imageKeeper counts which tasks use which image and, where the node's config says so, removes one that this driver pulled when
// no task has used it for a while. It keeps nothing on disk: tasks that are recovered bring their images along.
type imageKeeper struct {
	engine imageRemover
	delay  time.Duration // 0: images stay
	clock  clock.Clock
	log    hclog.Logger
	done   context.Context

	fetching sync.RWMutex // read-held from the look for an image to its use, so that it is not removed between the two

	mu     sync.Mutex
	tasks  map[string]string    // their images, by id
	pulled map[string]bool      // images that this driver brought to the node
	unused map[string]time.Time // since when, of those that wait to be removed
}

func newImageKeeper(done context.Context, engine imageRemover, delay time.Duration, c clock.Clock, log hclog.Logger) *imageKeeper {
	return &imageKeeper{
		engine: engine, delay: delay, clock: c, log: log, done: done,
		tasks: map[string]string{}, pulled: map[string]bool{}, unused: map[string]time.Time{},
	}
}

// use notes the image of a task, and whether this driver pulled it. It reports whether the image is one that was pulled.
func (k *imageKeeper) use(task, image string, pulled bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tasks[task] = image
	k.pulled[image] = k.pulled[image] || pulled
	delete(k.unused, image)
	return k.pulled[image]
}

// leave notes that a task is gone. The last one of an image starts its delay.
func (k *imageKeeper) leave(task string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	image, had := k.tasks[task]
	delete(k.tasks, task)
	if !had || !k.pulled[image] || k.delay <= 0 || k.inUse(image) {
		return
	}
	since := k.clock.Now()
	k.unused[image] = since
	go k.removeLater(image, since)
}

func (k *imageKeeper) inUse(image string) bool {
	for _, used := range k.tasks {
		if used == image {
			return true
		}
	}
	return false
}

// removeLater removes the image after the delay, unless a task has used it since. One that a container of somebody else has is
// tried again each delay.
func (k *imageKeeper) removeLater(image string, since time.Time) {
	for clock.Sleep(k.done, k.clock, k.delay) {
		if !k.fetching.TryLock() { // a start looks for its image: this one may be it
			continue
		}
		again := k.remove(image, since)
		k.fetching.Unlock()
		if !again {
			return
		}
	}
}

func (k *imageKeeper) remove(image string, since time.Time) (again bool) {
	k.mu.Lock()
	waits := k.unused[image].Equal(since)
	k.mu.Unlock()
	if !waits {
		return false
	}
	err := k.engine.RemoveImage(k.done, image)
	var down *docker.UnreachableError
	switch {
	case errors.Is(err, docker.ErrImageInUse), errors.As(err, &down):
		k.log.Debug("image not removed yet", "image", image, "error", err)
		return true
	case err != nil:
		k.log.Warn("image not removed", "image", image, "error", err)
	default:
		k.log.Info("image removed that no task uses", "image", image, "delay", k.delay)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unused, image)
	delete(k.pulled, image)
	return false
}
