package server_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/embedded"
)

// TestPlainDeviceBlocks_GetTheirForm: a job that was written for another device plugin asks for no switch of a form,
// and must not wait for good beside empty cards that other jobs had switched; it may also have gone round the service.
func TestPlainDeviceBlocks_GetTheirForm(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		device   string
		has, get accel.Form
		around   bool
	}{
		"whole card":                    {"nvidia/gpu", accel.Shared, accel.Whole, false},
		"whole card of a model":         {"nvidia/gpu/A100-SXM4-80GB", accel.Shared, accel.Whole, false},
		"whole card, round the service": {"gpu", accel.Shared, accel.Whole, true},
		"slices":                        {"nvidia/vgpu", accel.Whole, accel.Shared, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := embedded.SimNodes(1, 1, accel.NVIDIA, "A100-SXM4-80GB", 81920, tc.has)
			nodes[0].Auto = true
			s, e := start(t, nodes)
			job := plain("old")
			job.TaskGroups[0].Tasks[0].Resources.Devices = []*api.RequestedDevice{{Name: tc.device, Count: new(uint64(1))}}
			if tc.around {
				direct, err := api.NewClient(&api.Config{Address: e.Addr()})
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := direct.Jobs().Register(job, nil); err != nil {
					t.Fatal(err)
				}
			} else {
				s.register(job)
			}
			status, _, body := s.do(http.MethodPost, "/api/v1/keys", s.key, map[string]any{"kind": "node", "name": "n1"})
			if status != http.StatusCreated {
				t.Fatalf("key: %d %s", status, body)
			}
			operator := s.key
			s.key = plaintextOf(t, body)
			eventually(t, "the node is told", func() bool {
				items := s.items("/api/v1/intents?wait=1s&card=" + nodes[0].Cards[0].UUID)
				return len(items) == 1 && items[0]["form"] == string(tc.get)
			})
			s.key = operator
			nodes[0].Cards[0].Form = tc.get
			if err := e.SetNode(nodes[0]); err != nil {
				t.Fatal(err)
			}
			s.runs("old", 1)
		})
	}
}

func plaintextOf(t *testing.T, body []byte) string {
	t.Helper()
	var made struct{ Plaintext string }
	if err := json.Unmarshal(body, &made); err != nil {
		t.Fatal(err)
	}
	return made.Plaintext
}
