package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Await opens the database as Open does, again and again while it cannot be reached or is starting. An error is one
// that waiting will not cure, or the context's own.
func Await(ctx context.Context, url string, c clock.Clock, log hclog.Logger) (*Store, error) {
	pause := 250 * time.Millisecond
	for {
		s, err := Open(ctx, url, log, WithClock(c)) // what it stamps is compared with the same clock
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !IsAway(err) {
			return nil, fmt.Errorf("open the database: %w", err)
		}
		log.Warn("database cannot be opened", "error", err, "retry_in", pause)
		if !clock.Sleep(ctx, c, pause) {
			return nil, ctx.Err()
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// IsAway reports whether an error says that the database cannot be reached or used now and may be later: it does not
// answer, is starting or stopping, has no connection left, or is locked by another process for too long. The same
// call may then succeed when it is repeated.
func IsAway(err error) bool {
	var network *net.OpError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &network), errors.As(err, &connect):
		return true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return true
	}
	var locked *sqlite.Error
	if errors.As(err, &locked) {
		return locked.Code()&0xff == sqlite3.SQLITE_BUSY
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || len(state.SQLState()) != 5 {
		return false
	}
	// Classes of SQLSTATE: 57 operator intervention (starting, shutting down), 08 connection, 53 no resources.
	class := state.SQLState()[:2]
	return class == "57" || class == "08" || class == "53"
}
