package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

func TestHostCPU_NothingNewShowsTheLastLoad(t *testing.T) {
	t.Parallel()
	var h hostCPU
	for _, c := range []struct{ what, stat string }{
		{"since the boot", "cpu  30 0 20 50 0 0 0 0 0 0\ncpu0 30 0 20 50 0 0 0 0 0 0\nintr 7\n"},
		{"in the same tick", "cpu  30 0 20 50 0 0 0 0 0 0\ncpu0 30 0 20 50 0 0 0 0 0 0\nintr 9\n"},
		{"after as much again", "cpu  60 0 40 100 0 0 0 0 0 0\ncpu0 60 0 40 100 0 0 0 0 0 0\nintr 9\n"},
	} {
		got, err := h.load([]byte(c.stat))
		if err != nil {
			t.Fatal(err)
		}
		want := []*api.HostCPUStats{{CPU: "cpu0", User: 30, System: 20, Idle: 50}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}
