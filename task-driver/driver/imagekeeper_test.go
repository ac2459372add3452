package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// remover notes what is removed.
type remover struct {
	mu      sync.Mutex
	err     error
	removed []string
	asked   chan string
}

func (r *remover) RemoveImage(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if r.asked != nil {
			r.asked <- id
		}
	}()
	if r.err == nil {
		r.removed = append(r.removed, id)
	}
	return r.err
}

// A node pulls an image for a task; it goes three minutes after the last task that uses it, and not before.
func TestDocker_ImagesAreRemoved(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"gc": map[string]any{"image": true, "image_delay": "3m"}})
	fake.Publish("pulled:1")
	fakeClock := clock.NewFake(time.Unix(1e9, 0))
	removed := make(chan struct{}, 8)
	keep := func() {
		run := r.runtimes[runtimeDocker].(*dockerRuntime)
		run.images.clock = fakeClock
		run.images.engine = told{run.engine, removed}
	}
	keep()
	of := func(image string) map[string]any { return map[string]any{"image": image, "command": "sleep"} }
	first, second, there := r.job(of("pulled:1")), r.job(of("pulled:1")), r.job(app("sleep"))
	r.start(first)
	h := r.start(second)
	r.start(there)
	destroy := func(j job) {
		t.Helper()
		if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
			t.Fatal(err)
		}
	}
	destroy(first)
	destroy(there) // its image was on the node before, and stays
	if k := r.runtimes[runtimeDocker].(*dockerRuntime).images; len(k.unused) != 0 {
		t.Fatalf("%v wait to be removed while a task uses the only one that was pulled", k.unused)
	}
	r.restart()
	keep()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	destroy(second)
	if err := fakeClock.AwaitWaiters(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	fakeClock.Advance(3 * time.Minute)
	<-removed
	if fake.HasImage("pulled:1") || !fake.HasImage("app:1") {
		t.Errorf("pulled:1 is there: %v; app:1: %v", fake.HasImage("pulled:1"), fake.HasImage("app:1"))
	}
	off, offFake := dockerRig(t, nil)
	offFake.Publish("pulled:1")
	j := off.job(of("pulled:1"))
	off.start(j)
	if err := off.Destroy(off.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if k := off.runtimes[runtimeDocker].(*dockerRuntime).images; len(k.unused) != 0 {
		t.Error("without gc.image an image waits to be removed")
	}
}

// told says when a removal has been answered.
type told struct {
	imageRemover
	done chan struct{}
}

func (t told) RemoveImage(ctx context.Context, id string) error {
	err := t.imageRemover.RemoveImage(ctx, id)
	t.done <- struct{}{}
	return err
}

func TestImageKeeper_TriesAgainWhileAContainerHasIt(t *testing.T) {
	t.Parallel()
	c, r := clock.NewFake(time.Unix(1e9, 0)), &remover{err: fmt.Errorf("busy: %w", docker.ErrImageInUse), asked: make(chan string, 1)}
	k := newImageKeeper(t.Context(), r, time.Minute, c, hclog.NewNullLogger())
	step := func() string {
		t.Helper()
		if err := c.AwaitWaiters(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		c.Advance(time.Minute)
		return <-r.asked
	}
	k.use("a", "image", true)
	k.leave("a")
	step()
	step()
	r.mu.Lock()
	r.err = errors.New("image is referenced in multiple repositories")
	r.mu.Unlock()
	step() // given up: somebody else has named it
	k.use("b", "image", false)
	k.leave("b")
	if len(k.unused) != 0 {
		t.Errorf("%v wait of an image that was given up", k.unused)
	}
}

// Whatever order tasks come and go in, no image in use is removed, and none that was on the node before.
func TestImageKeeper_NeverRemovesWhatIsUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := clock.NewFake(time.Unix(1e9, 0))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &remover{}
		k := newImageKeeper(ctx, r, time.Minute, c, hclog.NewNullLogger())
		tasks, pulled := map[string]string{}, map[string]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			task := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "task")
			switch rapid.IntRange(0, 2).Draw(rt, "step") {
			case 0:
				if tasks[task] == "" {
					tasks[task] = rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "image")
					if rapid.Bool().Draw(rt, "pulled") {
						pulled[tasks[task]] = true
					}
					k.use(task, tasks[task], pulled[tasks[task]])
				}
			case 1:
				k.leave(task)
				delete(tasks, task)
			default:
				c.Advance(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second)
			}
			k.mu.Lock()
			for image := range k.unused {
				if k.inUse(image) || !pulled[image] {
					rt.Errorf("%s is to be removed: used %v, pulled %v", image, k.inUse(image), pulled[image])
				}
			}
			k.mu.Unlock()
		}
	})
}
