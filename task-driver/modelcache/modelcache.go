// Package modelcache keeps models on a node: fetched once however many tasks and processes of the driver ask, named by
// what is in them, complete or not there at all, and given up when others need the room and no task uses them. Mounting a
// model into a task, and starting tasks, do not belong here.
package modelcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/filelock"
)

// The folder of a cache:
//
//	file-<sha256>/model       a model of one file
//	tree-<sha256>/…           a model of several, with the list they were checked against
//	partial/<name>/…          what is there of a model that is being fetched, or was
//	partial/<name>.state      what is known of it
//	uses/<name>/<task>        a task that uses it, or waits for it; the folder's time is that of the last use
//	locks/<name>.lock         held by who fetches it; locks/room.lock by who makes room or marks a use
//	trash/…                   what is being removed
//
// A name appears in the folder by a rename, after everything in it was checked and synced.
const (
	partialDir = "partial"
	usesDir    = "uses"
	locksDir   = "locks"
	trashDir   = "trash"
	roomLock   = "room"
	// fileName is the file of a model of one file, whatever its source calls it.
	fileName = "model"
)

// Options say where a cache is and what it may use.
type Options struct {
	Dir string // full path
	// MaxBytes bounds what the cache holds; 0 is as much as the disk has room for.
	MaxBytes int64
	// Peers are addresses that serve the folder of another node's cache. They are asked before a model's source.
	Peers []string
	// FileRoots are the folders of the node that file sources may lie in.
	FileRoots []string
	// AskSource has the source of a model that is here already asked whether it gives it to this task too. Without, who
	// knows a model's checksum may use it.
	AskSource bool
	// S3 are the node's own store and credentials, for tasks that bring none.
	S3     S3
	Client *http.Client // nil is one that follows the proxy variables; used for peers too
	// Silence is how long a source may send next to nothing before it is asked again; 0 is a minute.
	Silence time.Duration
	// Every is the time between two progress events; 0 is ten seconds.
	Every time.Duration
	// Backoff is the pause after a first failure, which grows; 0 is a second.
	Backoff time.Duration
	// Free tells the bytes that the disk of a folder has room for; nil asks the file system.
	Free func(dir string) (int64, error)
	Log  hclog.Logger
}

// Cache is the models of a node. It is safe for concurrent use, also by several processes.
type Cache struct {
	o     Options
	peers *http.Client
}

// New makes a cache. Nothing is touched.
func New(o Options) *Cache {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&o.Silence, time.Minute)
	def(&o.Every, 10*time.Second)
	def(&o.Backoff, time.Second)
	peers := o.Client
	if o.Client == nil {
		o.Client, peers = newClient(30*time.Second, headerTimeout), newClient(3*time.Second, 10*time.Second)
	}
	if o.Free == nil {
		o.Free = freeBytes
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	return &Cache{o: o, peers: peers}
}

// Ask is a task's wish for a model.
type Ask struct {
	TaskID   string
	Source   string
	Checksum string
	// Env is the task's environment, which may hold its credentials for the source.
	Env map[string]string
}

// Model is one that is in the cache, or would be.
type Model struct {
	// Name is the model's name in its source, for people and for the path in a container.
	Name string
	// Path is the file, or the folder of a model of several files. Nothing in it is ever changed.
	Path string
	Tree bool
	key  string
}

// Check says what is wrong with a source or a checksum, and what to write instead.
func Check(source, checksum string) error {
	_, err := (&Cache{}).Locate(source, checksum)
	return err
}

// Locate says where a model lies once it was fetched. Nothing is touched. Errors say what to write instead.
func (c *Cache) Locate(source, checksum string) (Model, error) {
	s, err := parseSource(source)
	if err != nil {
		return Model{}, err
	}
	sum, err := ParseChecksum(checksum)
	if err != nil {
		return Model{}, err
	}
	if s.tree {
		key := "tree-" + sum
		return Model{Name: s.name, Path: filepath.Join(c.o.Dir, key), Tree: true, key: key}, nil
	}
	key := "file-" + sum
	return Model{Name: s.name, Path: filepath.Join(c.o.Dir, key, fileName), key: key}, nil
}

// Ensure fetches the model unless it is there, and keeps it for the task until Release. While another fetches it, it
// waits. Events are sentences for people; no secret is in them, nor in errors. An error that may pass by itself has
// Temporary() true; what was fetched until then is kept, and the next Ensure goes on from there.
func (c *Cache) Ensure(ctx context.Context, a Ask, event func(string)) (Model, error) {
	m, err := c.Locate(a.Source, a.Checksum)
	if err != nil {
		return Model{}, err
	}
	origin, err := c.origin(a)
	if err != nil {
		return Model{}, err
	}
	// Marked first, so that nobody gives it up between its end and its use.
	if err := c.mark(ctx, m.key, a.TaskID); err != nil {
		return Model{}, err
	}
	if err := c.ensure(ctx, m, origin, event); err != nil {
		return Model{}, errors.Join(err, c.unmark(context.WithoutCancel(ctx), m.key, a.TaskID))
	}
	return m, nil
}

func (c *Cache) ensure(ctx context.Context, m Model, from origin, event func(string)) error {
	if there, err := c.complete(m.key); there || err != nil {
		return errors.Join(err, c.asked(ctx, m, from))
	}
	lock, err := c.await(ctx, m, event)
	if err != nil {
		return err
	}
	err = c.fetchLocked(ctx, m, from, event)
	return errors.Join(err, lock.Release())
}

// fetchLocked fetches under the model's lock.
func (c *Cache) fetchLocked(ctx context.Context, m Model, from origin, event func(string)) error {
	if there, err := c.complete(m.key); there || err != nil {
		return errors.Join(err, c.asked(ctx, m, from))
	}
	if len(c.o.Peers) > 0 { // they ask nobody for leave
		if err := c.asked(ctx, m, from); err != nil {
			return err
		}
	}
	began := time.Now()
	f := &fetch{cache: c, model: m, dir: filepath.Join(c.o.Dir, partialDir, m.key), event: event}
	if err := f.run(ctx, from); err != nil {
		return err
	}
	if err := c.publish(m.key); err != nil {
		return err
	}
	event(fmt.Sprintf("Fetched model %s (%s) in %s", m.Name, formatBytes(f.total.Load()), time.Since(began).Round(100*time.Millisecond)))
	return nil
}

// asked asks the source of a model that is here, if that is wanted. The answer's body is not read.
func (c *Cache) asked(ctx context.Context, m Model, from origin) error {
	if !c.o.AskSource {
		return nil
	}
	name := ""
	if m.Tree {
		name = manifestName
	}
	p, err := from.open(ctx, name, 0, "")
	if err == nil {
		return p.body.Close()
	}
	err = fmt.Errorf("the source does not give the model to this task: %w", err)
	if isStubborn(err) {
		return err
	}
	return &passing{err}
}

// complete reports whether a model is there. It is whole if it is: see publish.
func (c *Cache) complete(key string) (bool, error) {
	_, err := os.Stat(filepath.Join(c.o.Dir, key))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look for model: %w", err)
}

// publish gives a checked model its place: synced, then renamed.
func (c *Cache) publish(key string) error {
	partial := filepath.Join(c.o.Dir, partialDir, key)
	if err := syncTree(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, filepath.Join(c.o.Dir, key)); err != nil {
		return fmt.Errorf("put model in its place: %w", err)
	}
	if err := os.Remove(partial + stateSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state of the fetch: %w", err)
	}
	return errors.Join(syncDir(filepath.Join(c.o.Dir, partialDir)), syncDir(c.o.Dir))
}

// syncTree makes what is below a folder durable, files before their folders.
func syncTree(dir string) error {
	var folders []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			folders = append(folders, path)
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Chmod(0o444), f.Close())
	})
	if err != nil {
		return fmt.Errorf("sync model: %w", err)
	}
	for i := len(folders) - 1; i >= 0; i-- {
		if err := syncDir(folders[i]); err != nil {
			return err
		}
	}
	return nil
}

// lockPoll is how often a lock is tried that another holds.
const lockPoll = 100 * time.Millisecond

// await takes the lock on a model, and tells how far the fetch of another is meanwhile.
func (c *Cache) await(ctx context.Context, m Model, event func(string)) (*filelock.Lock, error) {
	var told time.Time
	return c.lock(ctx, m.key, func() {
		if time.Since(told) < c.o.Every {
			return
		}
		told = time.Now()
		text := "Waiting for model " + m.Name + ", another task fetches it"
		if p := c.progressOf(m.key); p != "" {
			text += ": " + p
		}
		event(text)
	})
}

// lock waits for a lock of the cache.
func (c *Cache) lock(ctx context.Context, name string, waiting func()) (*filelock.Lock, error) {
	path := filepath.Join(c.o.Dir, locksDir, name+".lock")
	for {
		l, err := filelock.Try(path)
		if l != nil || err != nil {
			return l, err
		}
		waiting()
		timer := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("wait for the model's lock: %w", ctx.Err())
		case <-timer.C:
		}
	}
}
