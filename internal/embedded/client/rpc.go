package client

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// rpcText is an error of a plugin in the plugin's own words.
func rpcText(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// pluginGone reports whether a call failed because the plugin's process ended.
func pluginGone(err error) bool { return status.Code(err) == codes.Unavailable }

// saysNever reports whether a plugin answered that asking again is of no use.
func saysNever(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if re, ok := d.(*structspb.RecoverableError); ok {
			return !re.GetRecoverable()
		}
	}
	return false
}
