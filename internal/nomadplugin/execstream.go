package nomadplugin

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

type execWire = grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]

// ExecTaskStreaming joins the wire's frames to the readers and writers that a driver works with. The last frame says
// how the command ended.
func (d *driverServer) ExecTaskStreaming(stream execWire) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	setup := first.GetSetup()
	if setup == nil || len(setup.GetCommand()) == 0 {
		return status.Error(codes.InvalidArgument, "the first frame of an exec must carry its set-up with a command")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	out := &execSender{stream: stream}
	stdin, feed := io.Pipe()
	defer stdin.Close()
	resize := make(chan TerminalSize, 1)
	go func() {
		defer close(resize)
		feed.CloseWithError(pumpExecInput(ctx, stream, first, feed, resize))
	}()
	result, err := d.plugin.ExecStream(ctx, setup.GetTaskId(), &ExecStream{
		Command: setup.GetCommand(), TTY: setup.GetTty(), Stdin: stdin, Resize: resize,
		Stdout: execWriter{out, false}, Stderr: execWriter{out, true},
	})
	if err != nil {
		return statusError(err)
	}
	if result == nil {
		result = &driverpb.ExitResult{}
	}
	eof := &driverpb.ExecTaskStreamingIOOperation{Close: true}
	return errors.Join(
		out.send(&driverpb.ExecTaskStreamingResponse{Stdout: eof}),
		out.send(&driverpb.ExecTaskStreamingResponse{Stderr: eof}),
		out.send(&driverpb.ExecTaskStreamingResponse{Exited: true, Result: result}),
	)
}

// pumpExecInput feeds frames to the command until the user closes stdin and leaves. It returns what the reader of
// stdin shall see.
func pumpExecInput(ctx context.Context, stream execWire, frame *driverpb.ExecTaskStreamingRequest, stdin *io.PipeWriter, resize chan TerminalSize) error {
	for {
		if size := frame.GetTtySize(); size != nil {
			offerSize(ctx, resize, TerminalSize{Height: int(size.GetHeight()), Width: int(size.GetWidth())})
		}
		if in := frame.GetStdin(); in != nil {
			if len(in.GetData()) > 0 {
				// A command that no longer reads is no reason to stop listening for sizes.
				if _, err := stdin.Write(in.GetData()); err != nil && !errors.Is(err, io.ErrClosedPipe) {
					return err
				}
			}
			if in.GetClose() {
				if err := stdin.Close(); err != nil {
					return err
				}
			}
		}
		var err error
		if frame, err = stream.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return io.EOF
			}
			return err
		}
	}
}

// offerSize keeps only the newest size when the command is slow to take it.
func offerSize(ctx context.Context, resize chan TerminalSize, size TerminalSize) {
	for {
		select {
		case resize <- size:
			return
		case <-ctx.Done():
			return
		default:
		}
		select {
		case <-resize:
		default:
		}
	}
}

// execSender writes frames one at a time: stdout and stderr come from different goroutines.
type execSender struct {
	mu     sync.Mutex
	stream execWire
}

func (s *execSender) send(frame *driverpb.ExecTaskStreamingResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(frame)
}

type execWriter struct {
	out    *execSender
	stderr bool
}

func (w execWriter) Write(p []byte) (int, error) {
	op := &driverpb.ExecTaskStreamingIOOperation{Data: append([]byte(nil), p...)}
	frame := &driverpb.ExecTaskStreamingResponse{Stdout: op}
	if w.stderr {
		frame = &driverpb.ExecTaskStreamingResponse{Stderr: op}
	}
	if err := w.out.send(frame); err != nil {
		return 0, err
	}
	return len(p), nil
}
