package store

import (
	"context"
	"database/sql"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
)

// The log of a SQLite file is copied into the file beside the work, so that no transaction has to wait for it.
// SQLite would have the one do it that fills a thousand pages; it still does so at ten times that, should this be late.
const (
	checkpointEvery = time.Second
	checkpointAbove = 4 << 20 // bytes of log
	checkpointLate  = 10000   // pages of log
)

// startCheckpoints copies the log of the file until stop is called, which waits for it. A checkpoint in passive mode
// waits for nobody, and nobody waits for it.
func startCheckpoints(db *sql.DB, path string, log hclog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(checkpointEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if info, err := os.Stat(path + "-wal"); err != nil || info.Size() < checkpointAbove {
				continue // without a log there is nothing to copy
			}
			if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil && ctx.Err() == nil {
				log.Warn("the database's log cannot be copied now", "error", err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
