package config

import (
	"fmt"
	"time"

	"github.com/heteroflow/heteroflow/placement-service/submit"
)

// Queue says how jobs wait in the placement service.
type Queue struct {
	// Patience is how long a job waits before room is kept for it whose end nobody knows, as 90s or 10m.
	Patience string `hcl:"patience,optional"`
}

// Waits is the patience, the default for a block that was left out.
func (q *Queue) Waits() (time.Duration, error) {
	if q == nil || q.Patience == "" {
		return submit.DefaultPatience, nil
	}
	d, err := time.ParseDuration(q.Patience)
	if err != nil || d < time.Second {
		return 0, fmt.Errorf("queue patience %q: write a time of 1s or more, as 90s or 10m", q.Patience)
	}
	return d, nil
}
