package modelcache_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

// What a start costs whose model is there.
func BenchmarkEnsure_There(b *testing.B) {
	body := content(1, 1<<20)
	web := serve(b, map[string][]byte{"m": body})
	c := modelcache.New(options(b.TempDir()))
	ask := modelcache.Ask{Source: web.URL + "/m", Checksum: checksum(body)}
	for i := 0; b.Loop(); i++ {
		ask.TaskID = fmt.Sprint(i)
		if _, err := c.Ensure(context.Background(), ask, func(string) {}); err != nil {
			b.Fatal(err)
		}
		if err := c.Release(ask.TaskID); err != nil {
			b.Fatal(err)
		}
	}
}

// How fast a model comes from a server on the same machine, checksum and sync included.
func BenchmarkEnsure_Fetch(b *testing.B) {
	body := content(1, 64<<20)
	web := serve(b, map[string][]byte{"m": body})
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		c := modelcache.New(options(b.TempDir()))
		if _, err := c.Ensure(context.Background(), modelcache.Ask{TaskID: "t", Source: web.URL + "/m", Checksum: checksum(body)}, func(string) {}); err != nil {
			b.Fatal(err)
		}
	}
}
