package ascend

import "github.com/heteroflow/heteroflow/device-plugins/toolout"

// ParseSet reads what `npu-smi set` answers to a change. It never names a virtual NPU that was made: list them again to
// learn it. An answer without a status is none that the change was made.
func ParseSet(out string) (ok bool, message string) {
	for p := range toolout.Pairs(out) {
		switch p.Key {
		case "Status":
			ok = p.Value == "OK"
		case "Message":
			message = p.Value
		}
	}
	return ok, message
}
