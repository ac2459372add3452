package amd

import (
	"errors"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// The tables have the form of ROCm/rocm_smi_lib#108 and ROCm/rocm-systems#5763; the recorded ones are in the testdata of
// topology.
func TestLinks_AskEachToolInItsWords(t *testing.T) {
	t.Parallel()
	for tool, says := range map[string]struct{ args, text, ends string }{
		"rocm-smi": {"--showtopo", "=== Link Type between two GPUs ===\n GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n", "GPU0 GPU1"},
		"amd-smi":  {"topology", "LINK TYPE TABLE:\n 0000:c1:00.0 0000:c6:00.0\n0000:c1:00.0 SELF XGMI\n0000:c6:00.0 XGMI SELF\n", "0000:c1:00.0 0000:c6:00.0"},
	} {
		g, err := links(tool, func(args ...string) (string, error) {
			if strings.Join(args, " ") != says.args {
				return "", errors.New("no such option")
			}
			return says.text, nil
		})
		a, b, _ := strings.Cut(says.ends, " ")
		if e, ok := g.Edge(a, b); err != nil || !ok || e.Link.String() != "xgmi" {
			t.Errorf("%s: %+v, %v", tool, e, err)
		}
		if _, err := links(tool, func(...string) (string, error) { return "hello", nil }); !errors.Is(err, topology.ErrNoMatrix) {
			t.Errorf("%s: %v", tool, err)
		}
	}
}
