package nomadplugin

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// networkDriver is a driver that makes networks.
type networkDriver struct {
	fakeDriver
	gone []string
}

func (d *networkDriver) CreateNetwork(_ context.Context, allocID, hostname string) (*driverpb.NetworkIsolationSpec, bool, error) {
	if allocID == "" {
		return nil, false, errors.New("no allocation")
	}
	return &driverpb.NetworkIsolationSpec{Mode: driverpb.NetworkIsolationSpec_GROUP, Path: "/netns/" + allocID, Labels: map[string]string{"host": hostname}}, true, nil
}

func (d *networkDriver) DestroyNetwork(_ context.Context, allocID string, spec *driverpb.NetworkIsolationSpec) error {
	d.gone = append(d.gone, allocID+" "+spec.GetPath())
	return nil
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	maker := &networkDriver{}
	client := dialDriver(t, maker)
	made, err := client.CreateNetwork(ctx, &driverpb.CreateNetworkRequest{AllocId: "a", Hostname: "web"})
	if err != nil || !made.Created || made.IsolationSpec.Path != "/netns/a" || made.IsolationSpec.Labels["host"] != "web" {
		t.Errorf("made %v, %v", made, err)
	}
	if _, err := client.CreateNetwork(ctx, &driverpb.CreateNetworkRequest{}); err == nil || !strings.Contains(err.Error(), "no allocation") {
		t.Errorf("an error of the driver: %v", err)
	}
	if _, err := client.DestroyNetwork(ctx, &driverpb.DestroyNetworkRequest{AllocId: "a", IsolationSpec: made.IsolationSpec}); err != nil || len(maker.gone) != 1 || maker.gone[0] != "a /netns/a" {
		t.Errorf("removed %v, %v", maker.gone, err)
	}
	without := dialDriver(t, &fakeDriver{})
	if _, err := without.CreateNetwork(ctx, &driverpb.CreateNetworkRequest{AllocId: "a"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("of a driver that makes none: %v", err)
	}
	if _, err := without.DestroyNetwork(ctx, &driverpb.DestroyNetworkRequest{AllocId: "a"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("of a driver that makes none: %v", err)
	}
}
