"""Kernels that compute what a layer computes, faster: each is kept where it is proven."""
