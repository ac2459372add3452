package ascend_test

import (
	"testing"

	"github.com/heteroflow/heteroflow/device-plugins/ascend"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
)

func TestParseSet(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"set-create-vnpu-ok.txt": "Create vnpu success", "set-destroy-vnpu-ok.txt": "Destroy vnpu 213 success"} {
		if ok, message := ascend.ParseSet(brandtest.Recorded(t, file)); !ok || message != want {
			t.Errorf("%s: %v, %q", file, ok, message)
		}
	}
	if ok, _ := ascend.ParseSet("dcmi module initialize failed"); ok {
		t.Error("an error is taken for a success")
	}
}

func FuzzParseSet(f *testing.F) {
	f.Add("    Status : OK\n    Message : Create vnpu success\n")
	f.Fuzz(func(t *testing.T, out string) {
		if ok, _ := ascend.ParseSet(out); ok && len(out) < len("Status:OK") {
			t.Errorf("%q is taken for a success", out)
		}
	})
}
