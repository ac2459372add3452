package modelcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// diskMargin is what a fetch leaves free on the disk: other things of the node lie there too.
const diskMargin = 1 << 30

// held is one model that takes room, whole or in part.
type held struct {
	path  string
	key   string
	bytes int64     // on the disk
	still int64     // that are still to come: room is kept for them
	used  bool      // by a task, which may be the one that fetches it
	last  time.Time // of its uses
}

// keepRoom makes room for a model of this length, and notes it in the state. Models go that no task uses, those first that
// were not used for the longest time; none goes when all of them would not do.
func (c *Cache) keepRoom(ctx context.Context, key string, s state) error {
	var trash []string
	err := c.inRoom(ctx, func() error {
		all, err := c.holds()
		if err != nil {
			return err
		}
		if err := c.makeRoom(key, s.Total, all); err != nil {
			return err
		}
		if err := c.writeState(key, s); err != nil {
			return fmt.Errorf("note the length of a model: %w", err)
		}
		trash, err = c.trash()
		return err
	})
	for _, path := range trash { // others need not wait for it
		if err := os.RemoveAll(path); err != nil {
			c.o.Log.Warn("model that was given up is not removed yet", "path", path, "error", err)
		}
	}
	return err
}

// makeRoom moves models out of the way until total bytes of a model have room. The lock on room is held.
func (c *Cache) makeRoom(key string, total int64, all []held) error {
	free, err := c.o.Free(c.o.Dir)
	if err != nil {
		return err
	}
	limit := c.o.MaxBytes
	if limit == 0 {
		limit = math.MaxInt64
	}
	room, disk, inUse := limit-total, free-diskMargin-total, int64(0)
	var idle []held
	var gain int64
	for _, h := range all {
		switch {
		case h.key == key && strings.HasPrefix(h.path, filepath.Join(c.o.Dir, partialDir)):
			disk += h.bytes // is part of total
			continue
		case h.used:
			inUse += h.bytes + h.still
		default:
			idle, gain = append(idle, h), gain+h.bytes
		}
		room -= h.bytes + h.still
		disk -= h.still
	}
	short := -min(room, disk, 0)
	if total > limit || short > gain {
		return c.noRoom(total, inUse, free)
	}
	slices.SortStableFunc(idle, func(a, b held) int { return a.last.Compare(b.last) })
	for _, h := range idle {
		if short <= 0 {
			break
		}
		if err := c.giveUp(h); err != nil {
			return err
		}
		short -= h.bytes
	}
	return nil
}

// noRoom says why a model cannot be kept, and what to do.
func (c *Cache) noRoom(total, inUse, free int64) error {
	switch limit := c.o.MaxBytes; {
	case limit > 0 && total > limit:
		return fmt.Errorf("the model has %s, the node's cache is limited to %s: have models { max_size } raised in the plugin's config, or use another node", formatBytes(total), formatBytes(limit))
	case limit > 0 && total > limit-inUse:
		return &passing{fmt.Errorf("the model has %s, the node's cache is limited to %s, and running tasks use %s of it: stop some, have models { max_size } raised in the plugin's config, or use another node", formatBytes(total), formatBytes(limit), formatBytes(inUse))}
	}
	return &passing{fmt.Errorf("the model has %s, the disk of %s has %s free, of which %s stay free: make room there, or have models { dir } of the plugin's config lie on a larger disk", formatBytes(total), c.o.Dir, formatBytes(free), formatBytes(diskMargin))}
}

// holds lists what takes room. A model that is published meanwhile goes from the folder that is looked at first to the other
// one, so that it is not missed; it is listed once.
func (c *Cache) holds() ([]held, error) {
	var out []held
	at := map[string]int{}
	for _, dir := range []string{filepath.Join(c.o.Dir, partialDir), c.o.Dir} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list models: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() || !strings.HasPrefix(e.Name(), "file-") && !strings.HasPrefix(e.Name(), "tree-") {
				continue
			}
			h := held{path: filepath.Join(dir, e.Name()), key: e.Name()}
			if h.used, h.last, err = c.used(h.key); err != nil {
				return nil, err
			}
			h.bytes = bytesIn(h.path)
			if dir != c.o.Dir && h.used {
				h.still = max(0, c.readState(h.key).Total-h.bytes)
			}
			if i, twice := at[h.key]; twice {
				out[i] = h
				continue
			}
			at[h.key] = len(out)
			out = append(out, h)
		}
	}
	return out, nil
}

// giveUp moves a model into the trash. It is gone for everybody in one step.
func (c *Cache) giveUp(h held) error {
	trash := filepath.Join(c.o.Dir, trashDir)
	if err := os.MkdirAll(trash, 0o755); err != nil {
		return fmt.Errorf("make room for a model: %w", err)
	}
	bin, err := os.MkdirTemp(trash, h.key+"-")
	if err == nil {
		err = os.Rename(h.path, filepath.Join(bin, h.key))
	}
	if err != nil {
		return fmt.Errorf("make room for a model: %w", err)
	}
	c.o.Log.Info("model given up to make room", "model", h.key, "bytes", h.bytes, "last_used", h.last)
	for _, path := range []string{filepath.Join(c.o.Dir, usesDir, h.key), filepath.Join(c.o.Dir, partialDir, h.key+stateSuffix)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make room for a model: %w", err)
		}
	}
	return nil
}

// trash lists what was moved there, by this process or by one that was killed. The lock on room is held, so that nobody
// is just about to put something there.
func (c *Cache) trash() ([]string, error) {
	dir := filepath.Join(c.o.Dir, trashDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list models that were given up: %w", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out, nil
}
