package hygon

import (
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// links reads which cards are connected by xGMI. Tools that do not tell print no matrix.
func links(_ string, call brand.Call) (topology.Graph, error) {
	out, err := call("--showtopo")
	if err != nil {
		return topology.Graph{}, err
	}
	return topology.ParseROCm(out)
}
