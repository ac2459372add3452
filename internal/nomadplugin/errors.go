package nomadplugin

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// ErrTaskNotFound is what a driver answers for a task id it does not know. For Stop and Destroy it becomes an OK
// on the wire: the host cannot tell it from other errors there and would retry for minutes.
var ErrTaskNotFound = errors.New("task not found")

// ErrUnsupported is what a driver answers for a call it will never be able to serve for this task. The host does
// not ask again.
var ErrUnsupported = errors.New("not supported by this driver")

type recoverableError struct{ err error }

func (e *recoverableError) Error() string { return e.err.Error() }
func (e *recoverableError) Unwrap() error { return e.err }

// Recoverable marks an error of Driver.Start as one that may pass: the task's restart policy applies. Nil stays nil.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return &recoverableError{err}
}

// IsRecoverable reports whether the error was marked with Recoverable, in this process or by a plugin that sent it.
func IsRecoverable(err error) bool {
	var marked *recoverableError
	if errors.As(err, &marked) {
		return true
	}
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	for _, detail := range st.Details() {
		if re, ok := detail.(*structspb.RecoverableError); ok {
			return re.GetRecoverable()
		}
	}
	return false
}

// statusError turns an author's error into the status that the host understands.
func statusError(err error) error {
	if err == nil {
		return nil
	}
	var marked *recoverableError
	if errors.As(err, &marked) {
		return withRecoverable(codes.FailedPrecondition, err.Error(), true)
	}
	if errors.Is(err, ErrUnsupported) {
		return withRecoverable(codes.FailedPrecondition, err.Error(), false)
	}
	if errors.Is(err, ErrTaskNotFound) {
		return status.Error(codes.NotFound, err.Error())
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

func withRecoverable(code codes.Code, text string, recoverable bool) error {
	st, err := status.New(code, text).WithDetails(&structspb.RecoverableError{Recoverable: recoverable})
	if err != nil {
		return status.Error(code, text)
	}
	return st.Err()
}
