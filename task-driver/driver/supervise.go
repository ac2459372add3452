package driver

import (
	"encoding/json"
	"fmt"

	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/process"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// Workload builds what a supervisor runs, from the spec that a driver wrote.
func Workload(spec supervisor.Spec) (supervisor.Workload, error) {
	switch spec.Kind {
	case runtimeProcess:
		var c process.Command
		if err := json.Unmarshal(spec.Body, &c); err != nil {
			return nil, fmt.Errorf("read command: %w", err)
		}
		return process.New(c), nil
	case runtimeDocker:
		var f docker.Follow
		if err := json.Unmarshal(spec.Body, &f); err != nil {
			return nil, fmt.Errorf("read container: %w", err)
		}
		return docker.NewWorkload(f, spec.Resume)
	}
	return nil, fmt.Errorf("runtime %q is not known to this version of the driver", spec.Kind)
}
