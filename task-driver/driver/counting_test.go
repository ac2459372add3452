package driver

import (
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// A container counts its own cards, a process and a privileged container those of the host.
func TestTaskEnv_CountsWhatTheTaskReaches(t *testing.T) {
	t.Parallel()
	res := grant.Reservation{Vendor: accel.Ascend, Form: accel.Whole, Instances: []string{"A", "B"}, Cards: []grant.Card{
		{UUID: "A", Index: 4, Units: 1}, {UUID: "B", Index: 6, Units: 1},
	}}
	slow := reserve(t, res, grant.Reservation{Vendor: accel.Cambricon, Form: accel.Whole, Instances: []string{"C"}, Cards: []grant.Card{{UUID: "C", Index: 3, Units: 1}}})
	for name, tc := range map[string]struct {
		config       TaskConfig
		own, runtime string
		untold       string
	}{
		"a container":            {TaskConfig{Runtime: runtimeDocker}, "0,1", "4,6", ""},
		"a process":              {TaskConfig{Runtime: runtimeProcess}, "4,6", "4,6", "3"},
		"a privileged container": {TaskConfig{Runtime: runtimeDocker, Privileged: true}, "4,6", "4,6", "3"},
	} {
		cfg := taskOf(slow)
		cfg.Env = map[string]string{"MLU_VISIBLE_DEVICES": "7"}
		s, err := admit(cfg, tc.config, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		env := taskEnv(cfg, tc.config, s, share.Combined{})
		for variable, want := range map[string]string{"ASCEND_RT_VISIBLE_DEVICES": tc.own, "ASCEND_VISIBLE_DEVICES": tc.runtime, "MLU_VISIBLE_DEVICES": tc.untold} {
			if got, there := env[variable]; got != want || there != (want != "") {
				t.Errorf("%s: %s is %q, want %q", name, variable, got, want)
			}
		}
	}
}
