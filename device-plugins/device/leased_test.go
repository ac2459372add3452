package device

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
)

// What a task has is not offered in another form, whatever became of the book of forms or of the config meanwhile.
func TestFingerprint_KeepsTheFormThatTasksHave(t *testing.T) {
	t.Parallel()
	const waits = "vgpu: tasks have the card in the form shared: it is offered as whole when they have ended"
	for name, tc := range map[string]struct {
		book string
		rule string
		has  accel.Form
		want string // the group of instances
		end  string // after the task
	}{
		"the book is lost":    {"", "", accel.Shared, "vgpu", "vgpu"},
		"the book is broken":  {"{", "", accel.Shared, "vgpu", "vgpu"},
		"the book is nothing": {"null", "", accel.Shared, "vgpu", "vgpu"},
		"the book is older":   {`{"GPU-a":"shared"}`, "", accel.Whole, "gpu", "gpu"},
		"a rule says whole":   {`{"GPU-a":"shared"}`, "whole", accel.Shared, waits, "gpu"},
		"an older driver":     {`{"GPU-a":"shared"}`, "", "", "vgpu", "vgpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := &bench{name: "b", cards: []accel.Card{good("GPU-a", "0000:01:00.0")}}
			dir := t.TempDir()
			if tc.book != "" {
				if err := os.WriteFile(filepath.Join(dir, "forms.json"), []byte(tc.book), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			lease := grant.Lease{TaskID: "t", Cards: []string{"GPU-a"}}
			if tc.has != "" {
				lease.Forms = map[string]accel.Form{"GPU-a": tc.has}
			}
			leases := filepath.Join(dir, "leases")
			if err := grant.WriteLease(leases, lease); err != nil {
				t.Fatal(err)
			}
			p := start(t, func(c *Config) {
				c.StateDir = dir
				if tc.rule != "" {
					c.Forms = map[string]string{"A40": tc.rule}
				}
			}, card)
			messages := fingerprint(t, p)
			got := groupOf(receive(t, messages))
			if got != tc.want {
				t.Errorf("want %s, got %s", tc.want, got)
			}
			if err := grant.RemoveLease(leases, "t"); err != nil {
				t.Fatal(err)
			}
			for got != tc.end {
				got = groupOf(receive(t, messages))
			}
		})
	}
}

// groupOf is the type of the instances, and why they are unhealthy.
func groupOf(groups []*devicepb.DeviceGroup) string {
	out := ""
	for _, g := range groups {
		if g.DeviceType == accel.DescriptorType {
			continue
		}
		out += g.DeviceType
		if !g.Devices[0].Healthy {
			out += ": " + g.Devices[0].HealthDescription
		}
	}
	return out
}
