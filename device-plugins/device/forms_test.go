package device

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// While a plugin is replaced the old one may still run: neither undoes what the other has written.
func TestFormBook_OfTwoPlugins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *formBook {
		t.Helper()
		b, err := openForms(dir)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one, two := open(), open()
	for _, step := range []struct {
		book *formBook
		card string
		form accel.Form
	}{{one, "GPU-a", accel.Shared}, {two, "GPU-b", accel.Shared}, {one, "GPU-c", accel.Shared}, {two, "GPU-a", accel.Whole}} {
		if err := step.book.choose(step.card, step.form); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]accel.Form{"GPU-a": accel.Whole, "GPU-b": accel.Shared, "GPU-c": accel.Shared}
	if diff := cmp.Diff(want, open().chosen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
