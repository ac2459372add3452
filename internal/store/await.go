package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// Await opens the database as Open does, again and again while it cannot be reached or is starting. An error is one
// that waiting will not cure, or the context's own.
func Await(ctx context.Context, url string, c clock.Clock, log hclog.Logger) (*Store, error) {
	pause := 250 * time.Millisecond
	for {
		s, err := Open(ctx, url, log)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !mayPass(err) {
			return nil, fmt.Errorf("open the database: %w", err)
		}
		log.Warn("database cannot be opened", "error", err, "retry_in", pause)
		if !clock.Sleep(ctx, c, pause) {
			return nil, ctx.Err()
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// mayPass reports whether the database may be there later: it could not be reached, or is starting or full.
func mayPass(err error) bool {
	var network *net.OpError
	if errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || len(state.SQLState()) != 5 {
		return false
	}
	// Classes of SQLSTATE: 57 operator intervention (starting, shutting down), 08 connection, 53 no resources.
	class := state.SQLState()[:2]
	return class == "57" || class == "08" || class == "53"
}
