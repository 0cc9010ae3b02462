"""Names of operations by how they treat rows. An op in none of these lists, and without a rule, may mix rows."""

from __future__ import annotations


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Elementwise, on one tensor or several.
ELEMENTWISE = _listed(
    """
    Abs Acos Acosh AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation Angle ApproximateEqual AsString
    Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e
    BesselK1 BesselK1e BesselY0 BesselY1 Betainc BitwiseAnd BitwiseOr BitwiseXor Bucketize Ceil ClipByValue
    Complex ComplexAbs Conj Cos Cosh Digamma Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorMod
    FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsPerChannel Greater GreaterEqual HSVToRGB Igamma IgammaGradA Igammac Imag Inv InvGrad
    Invert IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd
    LogicalNot LogicalOr Mod Ndtri NextAfter NotEqual Polygamma PopulationCount Pow QuantizeAndDequantize
    QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad RGBToHSV
    RandomGammaGrad Real Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt
    RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad Spence
    Sqrt SqrtGrad Square SquaredDifference Tan Tanh TanhGrad ToBool TruncateMod Xdivy Xlog1py Xlogy Zeta
    DecodeBase64 EncodeBase64 LookupTableFind LookupTableFindV2 RegexFullMatch RegexReplace StaticRegexFullMatch
    StaticRegexReplace StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeScript UnicodeTranscode DecodeRaw
    DecodePaddedRaw
    """
)

#: Row by row along the first dimension, whatever they do along the others.
BY_ROW = _listed(
    """
    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchNormWithGlobalNormalization Conv Conv2D Conv2DBackpropInput
    Conv2DBackpropInputV2 Conv3D Conv3DBackpropInput Conv3DBackpropInputV2 CombinedNonMaxSuppression
    CropAndResize DepthToSpace DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput Dilation2D
    Dilation2DBackpropInput DrawBoundingBoxes ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches
    ExtractVolumePatches FractionalAvgPool FractionalMaxPool FusedPadConv2D FusedResizeAndPadConv2D
    ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 LRN LRNGrad MaxPool MaxPool3D
    MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2
    MaxPoolWithArgmax ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ResizeNearestNeighborGrad ScaleAndTranslate ScaleAndTranslateGrad SpaceToDepth
    XlaConvV2 BatchToSpace BatchToSpaceND SpaceToBatch SpaceToBatchND OneHot MirrorPadGrad StridedSliceGrad
    SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits CTCGreedyDecoder CTCLoss CTCLossV2
    CudnnRNN CudnnRNNV2 CudnnRNNV3 BlockLSTM BlockLSTMV2 LSTMBlockCell GRUBlockCell DecodeJpeg DecodePng
    DecodeImage SparseToDense SparseReorder SparseReshape SparseSlice SparseSoftmax SparseDenseCwiseAdd
    SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseCross SparseCrossHashed SparseCrossV2
    SparseTensorDenseAdd SparseAdd RaggedTensorToTensor RaggedTensorToSparse RaggedTensorFromVariant
    RaggedTensorToVariant RaggedGather RaggedRange RaggedBincount RaggedCross RaggedFillEmptyRows StringSplit
    StringSplitV2 StringNGrams UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode ReduceJoin
    SentencepieceTokenizeOp WhitespaceTokenizeWithOffsets EditDistance DebugGradientIdentity
    DebugNumericSummaryV2 TensorStridedSliceUpdate StatelessRandomGetKeyCounter StatelessRandomGetAlg
    StatelessRandomGetKeyCounterAlg LowerBound UpperBound
    """
)

#: Ops along the last dimension.
LAST_DIM = _listed(
    """
    Softmax LogSoftmax TopK TopKV2 ApproxTopK NthElement FFT IFFT RFFT IRFFT MatrixDiag MatrixDiagV2
    MatrixDiagV3 DCT AudioSpectrogram Mfcc
    """
)

#: Ops along the last two dimensions.
LAST_TWO_DIMS = _listed(
    """
    FFT2D IFFT2D RFFT2D IRFFT2D BandedTriangularSolve BatchMatrixInverse Cholesky CholeskyGrad Eig
    LogMatrixDeterminant Lu MatrixBandPart MatrixDeterminant MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr SelfAdjointEig SelfAdjointEigV2 Svd
    TridiagonalMatMul TridiagonalSolve
    """
)

#: Ops along the last three dimensions.
LAST_THREE_DIMS = _listed("FFT3D IFFT3D RFFT3D IRFFT3D")

#: Gradients of tensors that all rows share: sums over rows.
WEIGHT_GRADIENTS = _listed(
    """
    BiasAddGrad Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2
    DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter
    """
)

#: Linear in the one input that has rows; the rows keep their order.
UNCHANGED = _listed(
    """
    Bitcast Cast CheckNumerics DebugIdentityV2 EnsureShape ExpandDims Identity PlaceholderWithDefault
    PreventGradient Snapshot Squeeze StopGradient Transpose ConjugateTranspose
    """
)

#: Ops whose outputs have rows, whatever their inputs.
SOURCES = _listed(
    """
    EagerPyFunc IteratorGetNext IteratorGetNextAsOptional IteratorGetNextSync
    MultiDeviceIteratorGetNextFromShard OptionalGetValue ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 PyFunc PyFuncStateless
    """
)

#: Elementwise sums and differences of their inputs.
ADDITIONS = _listed("Add AddN AddV2 Neg Sub")

#: Elementwise products of two inputs.
PRODUCTS = _listed("Mul MulNoNan")

#: Ops that look up parts of their first input by their second, or sum or set them.
LOOKUPS = _listed(
    """
    Gather GatherNd GatherV2 ResourceGather ResourceGatherNd TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterSub TensorScatterUpdate
    """
)

#: Reductions over replicas; the result is the same on all of them.
OVER_REPLICAS = _listed("CollectiveReduce CollectiveReduceV2 CollectiveReduceV3 HorovodAllreduce NcclAllReduce")

#: Ops that draw random numbers.
DRAWS = _listed(
    """
    Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2
    RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip StatefulRandomBinomial
    StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
    StatefulUniformFullInt StatefulUniformInt StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomUniformInt StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal
    """
)
