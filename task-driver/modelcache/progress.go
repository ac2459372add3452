package modelcache

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// report tells how far a fetch is, until the returned function is called.
func (f *fetch) report(ctx context.Context) func() {
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		every := f.cache.o.Every
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		told, before := "", f.done.Load()
		for {
			select {
			case <-ended:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			done, total := f.done.Load(), f.total.Load()
			rate := max(0, done-before) * int64(time.Second) / int64(every)
			before = done
			if p := percent(done, total); total > 0 && p != told {
				told = p
				f.event(fmt.Sprintf("Fetching model %s: %s (%s of %s, %s/s)", f.model.Name, p, formatBytes(done), formatBytes(total), formatBytes(rate)))
			}
		}
	})
	return func() { close(ended); telling.Wait() }
}

// progressOf is how far the fetch of another is; empty when that is not known.
func (c *Cache) progressOf(key string) string {
	total := c.readState(key).Total
	if total <= 0 {
		return ""
	}
	return percent(bytesIn(filepath.Join(c.o.Dir, partialDir, key)), total)
}

// percent is a part of a whole, rounded down: 100 % is all of it.
func percent(done, total int64) string {
	if total <= 0 {
		return "0 %"
	}
	return fmt.Sprintf("%d %%", int64(float64(min(done, total))/float64(total)*100))
}

// formatBytes is a length for people.
func formatBytes(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, at := float64(n)/1024, 0
	for value >= 1024 && at < len(units)-1 {
		value, at = value/1024, at+1
	}
	return fmt.Sprintf("%.1f %s", value, units[at])
}
