package config

import (
	"errors"
	"fmt"
	"time"
)

// Hold says what the gateway does with requests for a model whose service has no instance. Without an address to wake it
// at they are refused. What is empty or 0 is the gateway's default.
type Hold struct {
	Wake        string `hcl:"wake,optional"`         // address of the API that scales jobs: the placement service's, or Nomad's
	Token       string `hcl:"token,optional"`        // for it; Nomad's when left out
	Wait        string `hcl:"wait,optional"`         // how long a request waits at most
	MaxRequests int    `hcl:"max_requests,optional"` // that wait for one service
	MaxMB       int64  `hcl:"max_mb,optional"`       // MiB of their bodies
}

// MaxWait is how long a request waits at most, 0 when it is left out. An error names what else is wrong, too.
func (h *Hold) MaxWait() (time.Duration, error) {
	var problems []error
	var wait time.Duration
	if h.Wait != "" {
		d, err := time.ParseDuration(h.Wait)
		if err != nil || d < time.Second || d > time.Hour {
			problems = append(problems, fmt.Errorf("wait %q of hold: write a time from 1s to 1h", h.Wait))
		}
		wait = d
	}
	if h.MaxRequests < 0 || h.MaxRequests > 1_000_000 {
		problems = append(problems, fmt.Errorf("max_requests %d of hold: write 1 to 1000000", h.MaxRequests))
	}
	if h.MaxMB < 0 || h.MaxMB > 1<<20 {
		problems = append(problems, fmt.Errorf("max_mb %d of hold: write 1 to 1048576", h.MaxMB))
	}
	return wait, errors.Join(problems...)
}
