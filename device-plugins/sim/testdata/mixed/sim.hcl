seed    = 1
control = "control.hcl"
card "nvidia" {
  model  = "A100-SXM4-80GB"
  count  = 2
  memory = "80GiB"
}
card "ascend" {
  model  = "910B3"
  count  = 2
  memory = "64GiB"
}
card "amd" {
  model = "MI300X" # memory not told
}
card "cambricon" {
  model  = "MLU370-X8"
  memory = "48GiB"
}
