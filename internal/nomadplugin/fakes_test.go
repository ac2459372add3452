package nomadplugin

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// connect serves what register adds, with the options of a real plugin, and returns a connection to it.
func connect(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(serverOptions(nil, hclog.NewNullLogger())...)
	register(srv)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(lis); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		srv.Stop()
		<-done
	})
	return conn
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func noPause(context.Context, int) {}

type fakeBase struct {
	info      Info
	schema    *hclspec.Spec
	configure func([]byte) error
}

func (f *fakeBase) Info() Info                  { return f.info }
func (f *fakeBase) ConfigSchema() *hclspec.Spec { return f.schema }
func (f *fakeBase) Configure(b []byte) error {
	if f.configure == nil {
		return nil
	}
	return f.configure(b)
}

type fakeDevice struct {
	fakeBase
	fingerprint func(context.Context, func([]*devicepb.DeviceGroup) error) error
	reserve     func([]string) (*devicepb.ContainerReservation, error)
	stats       func(context.Context, time.Duration, func([]*devicepb.DeviceGroupStats) error) error
}

var _ Device = (*fakeDevice)(nil)

func (f *fakeDevice) Fingerprint(ctx context.Context, send func([]*devicepb.DeviceGroup) error) error {
	return f.fingerprint(ctx, send)
}

func (f *fakeDevice) Reserve(_ context.Context, ids []string) (*devicepb.ContainerReservation, error) {
	return f.reserve(ids)
}

func (f *fakeDevice) Stats(ctx context.Context, every time.Duration, send func([]*devicepb.DeviceGroupStats) error) error {
	return f.stats(ctx, every, send)
}

// fakeDriver answers with its fields; a nil function answers with nothing.
type fakeDriver struct {
	fakeBase
	start       func(*driverpb.TaskConfig) (*driverpb.TaskHandle, error)
	err         error
	wait        func(context.Context) (*driverpb.ExitResult, error)
	execStream  func(context.Context, *ExecStream) (*driverpb.ExitResult, error)
	fingerprint func(context.Context, func(*driverpb.FingerprintResponse) error) error
	stats       func(context.Context, time.Duration, func(*driverpb.TaskStats) error) error
	events      func(context.Context, func(*driverpb.DriverTaskEvent) error) error
}

var _ Driver = (*fakeDriver)(nil)

func (f *fakeDriver) TaskConfigSchema() *hclspec.Spec            { return nil }
func (f *fakeDriver) Capabilities() *driverpb.DriverCapabilities { return nil }
func (f *fakeDriver) Fingerprint(ctx context.Context, send func(*driverpb.FingerprintResponse) error) error {
	return f.fingerprint(ctx, send)
}

func (f *fakeDriver) Start(_ context.Context, cfg *driverpb.TaskConfig) (*driverpb.TaskHandle, *driverpb.NetworkOverride, error) {
	h, err := f.start(cfg)
	return h, nil, err
}
func (f *fakeDriver) Recover(context.Context, *driverpb.TaskHandle) error { return f.err }
func (f *fakeDriver) Wait(ctx context.Context, _ string) (*driverpb.ExitResult, error) {
	return f.wait(ctx)
}
func (f *fakeDriver) Stop(context.Context, string, time.Duration, string) error { return f.err }
func (f *fakeDriver) Destroy(context.Context, string, bool) error               { return f.err }
func (f *fakeDriver) Inspect(context.Context, string) (*driverpb.TaskStatus, map[string]string, error) {
	return nil, nil, f.err
}

func (f *fakeDriver) Stats(ctx context.Context, _ string, every time.Duration, send func(*driverpb.TaskStats) error) error {
	return f.stats(ctx, every, send)
}

func (f *fakeDriver) Events(ctx context.Context, send func(*driverpb.DriverTaskEvent) error) error {
	return f.events(ctx, send)
}
func (f *fakeDriver) Signal(context.Context, string, string) error { return f.err }
func (f *fakeDriver) Exec(context.Context, string, []string, time.Duration) (stdout, stderr []byte, res *driverpb.ExitResult, err error) {
	return []byte("out"), nil, nil, f.err
}

func (f *fakeDriver) ExecStream(ctx context.Context, _ string, s *ExecStream) (*driverpb.ExitResult, error) {
	return f.execStream(ctx, s)
}
