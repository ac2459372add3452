package bundle_test

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/ascend"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/bundle"
)

// A bundle from a user is a machine in a test. This one must be read by every later version.
func TestOpen_BundleAsAFixture(t *testing.T) {
	t.Parallel()
	box, err := bundle.Open("testdata/ascend-without-a-right.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	d := brand.New(ascend.Spec(), brand.Config{Files: box.Files(), Tools: box.Tools()}, hclog.NewNullLogger())
	const why = "npu-smi: the driver is not initialised, or this process may not use it: run the agent as root or in the group HwHiAiUser"
	brandtest.WantCards(t, d, "-1 ascend/gpu/unknown PCI-0000:c1:00.0 ? "+why)
	b, err := d.Diagnose(context.Background())
	if err != nil || len(b.Lacks) == 0 || b.Lacks[0].Kind != diagnose.NoPermission || len(b.Nodes) != 4 || b.Bus[0].Driver != "devdrv_device_driver" {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestOpen_NoFile(t *testing.T) {
	t.Parallel()
	if _, err := bundle.Open("testdata/none.tar.gz"); err == nil {
		t.Error("an absent file is opened")
	}
}
