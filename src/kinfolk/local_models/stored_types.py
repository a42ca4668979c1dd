"""The types that a file of estimators may name. There is no function among them."""

from __future__ import annotations

from collections.abc import Mapping


def _names(homes: Mapping[str, str]) -> frozenset[str]:
    """The full names of types, from the modules that they live in."""
    return frozenset(f"{module}.{name}" for module, names in homes.items() for name in names.split())


NUMBER_TYPES = _names({
    "numpy": "bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 str_",
})  # fmt: skip

ESTIMATORS = _names({
    "kinfolk.local_models.estimators": "OneClass Resampled",
    "sklearn.calibration": "CalibratedClassifierCV",
    "sklearn.compose._column_transformer": "ColumnTransformer",
    "sklearn.compose._target": "TransformedTargetRegressor",
    "sklearn.cross_decomposition._pls": "PLSRegression",
    "sklearn.decomposition._fastica": "FastICA",
    "sklearn.decomposition._kernel_pca": "KernelPCA",
    "sklearn.decomposition._pca": "PCA",
    "sklearn.decomposition._truncated_svd": "TruncatedSVD",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble._bagging": "BaggingClassifier BaggingRegressor",
    "sklearn.ensemble._forest": "ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier RandomForestRegressor",
    "sklearn.ensemble._gb": "GradientBoostingClassifier GradientBoostingRegressor",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
        "HistGradientBoostingClassifier HistGradientBoostingRegressor"
    ),
    "sklearn.ensemble._stacking": "StackingClassifier StackingRegressor",
    "sklearn.ensemble._voting": "VotingClassifier VotingRegressor",
    "sklearn.ensemble._weight_boosting": "AdaBoostClassifier AdaBoostRegressor",
    "sklearn.feature_selection._from_model": "SelectFromModel",
    "sklearn.feature_selection._variance_threshold": "VarianceThreshold",
    "sklearn.gaussian_process._gpc": "GaussianProcessClassifier",
    "sklearn.gaussian_process._gpr": "GaussianProcessRegressor",
    "sklearn.impute._base": "MissingIndicator SimpleImputer",
    "sklearn.impute._knn": "KNNImputer",
    "sklearn.isotonic": "IsotonicRegression",
    "sklearn.kernel_approximation": "Nystroem RBFSampler",
    "sklearn.kernel_ridge": "KernelRidge",
    "sklearn.linear_model._base": "LinearRegression",
    "sklearn.linear_model._bayes": "ARDRegression BayesianRidge",
    "sklearn.linear_model._coordinate_descent": (
        "ElasticNet ElasticNetCV Lasso LassoCV "
        "MultiTaskElasticNet MultiTaskElasticNetCV MultiTaskLasso MultiTaskLassoCV"
    ),
    "sklearn.linear_model._glm.glm": "GammaRegressor PoissonRegressor TweedieRegressor",
    "sklearn.linear_model._huber": "HuberRegressor",
    "sklearn.linear_model._least_angle": "Lars LarsCV LassoLars LassoLarsCV LassoLarsIC",
    "sklearn.linear_model._logistic": "LogisticRegression LogisticRegressionCV",
    "sklearn.linear_model._omp": "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
    "sklearn.linear_model._perceptron": "Perceptron",
    "sklearn.linear_model._quantile": "QuantileRegressor",
    "sklearn.linear_model._ransac": "RANSACRegressor",
    "sklearn.linear_model._ridge": "Ridge RidgeCV RidgeClassifier RidgeClassifierCV",
    "sklearn.linear_model._stochastic_gradient": "SGDClassifier SGDRegressor",
    "sklearn.linear_model._theil_sen": "TheilSenRegressor",
    "sklearn.model_selection._search": "GridSearchCV RandomizedSearchCV",
    "sklearn.multiclass": "OneVsOneClassifier OneVsRestClassifier OutputCodeClassifier",
    "sklearn.multioutput": "ClassifierChain MultiOutputClassifier MultiOutputRegressor RegressorChain",
    "sklearn.naive_bayes": "BernoulliNB CategoricalNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neighbors._classification": "KNeighborsClassifier RadiusNeighborsClassifier",
    "sklearn.neighbors._nearest_centroid": "NearestCentroid",
    "sklearn.neighbors._regression": "KNeighborsRegressor RadiusNeighborsRegressor",
    "sklearn.neural_network._multilayer_perceptron": "MLPClassifier MLPRegressor",
    "sklearn.pipeline": "FeatureUnion Pipeline",
    "sklearn.preprocessing._data": (
        "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer PowerTransformer QuantileTransformer "
        "RobustScaler StandardScaler"
    ),
    "sklearn.preprocessing._discretization": "KBinsDiscretizer",
    "sklearn.preprocessing._encoders": "OneHotEncoder OrdinalEncoder",
    "sklearn.preprocessing._function_transformer": "FunctionTransformer",  # as ColumnTransformer uses it, without one
    "sklearn.preprocessing._label": "LabelBinarizer LabelEncoder",
    "sklearn.preprocessing._polynomial": "PolynomialFeatures",
    "sklearn.preprocessing._target_encoder": "TargetEncoder",
    "sklearn.svm._classes": "LinearSVC LinearSVR NuSVC NuSVR SVC SVR",
    "sklearn.tree._classes": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier ExtraTreeRegressor",
})  # fmt: skip

PARTS = _names({  # what those estimators hold inside
    "sklearn._loss.link": "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit",
    "sklearn._loss.loss": (
        "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss HalfPoissonLoss "
        "HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity HuberLoss PinballLoss"
    ),
    "sklearn.calibration": "_CalibratedClassifier _SigmoidCalibration _TemperatureScaling",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.gaussian_process._gpc": "_BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels": (
        "CompoundKernel ConstantKernel DotProduct ExpSineSquared Exponentiation Matern PairwiseKernel Product RBF "
        "RationalQuadratic Sum WhiteKernel"
    ),
    "sklearn.metrics._scorer": "_PassthroughScorer",
    "sklearn.model_selection._split": "KFold StratifiedKFold",
    "sklearn.multiclass": "_ConstantPredictor",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
})  # fmt: skip

NEIGHBOUR_TREES = _names({"sklearn.neighbors._ball_tree": "BallTree", "sklearn.neighbors._kd_tree": "KDTree"})
TUPLE_STATES = NEIGHBOUR_TREES | _names({  # types whose state is a tuple, not attributes by name
    "sklearn.metrics._dist_metrics": (
        "ChebyshevDistance64 EuclideanDistance64 HaversineDistance64 ManhattanDistance64 MinkowskiDistance64"
    ),
})  # fmt: skip

LOSSES = _names({
    "sklearn._loss._loss": (
        "CyAbsoluteError CyExponentialLoss CyHalfBinomialLoss CyHalfGammaLoss CyHalfMultinomialLoss CyHalfPoissonLoss "
        "CyHalfSquaredError CyHalfTweedieLoss CyHalfTweedieLossIdentity CyHuberLoss CyPinballLoss"
    ),
    "sklearn.linear_model._sgd_fast": (
        "EpsilonInsensitive Hinge Huber Log ModifiedHuber SquaredEpsilonInsensitive SquaredHinge SquaredLoss"
    ),
})  # fmt: skip

# Which types each loader may have. A loader that is not here, such as those of functions, is refused.
TYPES: Mapping[str, frozenset[str]] = {
    "JsonNode": _names({"builtins": "str"}),
    "ListNode": _names({"builtins": "list"}),
    "TupleNode": _names({"builtins": "tuple", "kinfolk.local_models.least_squares": "LinearFit"}),
    "SetNode": _names({"builtins": "set"}),
    "DictNode": _names({"builtins": "dict", "collections": "OrderedDict", "sklearn.utils._bunch": "Bunch"}),
    "DefaultDictNode": _names({"collections": "defaultdict"}),
    "SliceNode": _names({"builtins": "slice"}),
    "TypeNode": NUMBER_TYPES | _names({"builtins": "str int float bool list dict", "collections": "OrderedDict"}),
    "NdArrayNode": NUMBER_TYPES | _names({"numpy": "ndarray"}),
    "MaskedArrayNode": _names({"numpy.ma": "MaskedArray", "numpy.ma.core": "MaskedArray"}),
    "DTypeNode": _names({"numpy": "dtype"}),
    "RandomStateNode": _names({"numpy.random.mtrand": "RandomState"}),
    "RandomGeneratorNode": _names({"numpy.random._generator": "Generator"}),
    "TreeNode": _names({"sklearn.tree._tree": "Tree"}),
    "LossNode": LOSSES,
    "ObjectNode": ESTIMATORS | PARTS | TUPLE_STATES,
}
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
SUPPORT_MACHINES = _names({"sklearn.svm._classes": "NuSVC NuSVR SVC SVR"})
TREE_PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"
# Types that hand rows to trees without a look at how many features the trees expect.
TREE_OWNERS = _names({
    "sklearn.ensemble._forest": "ExtraTreesClassifier ExtraTreesRegressor RandomForestClassifier RandomForestRegressor",
    "sklearn.ensemble._gb": "GradientBoostingClassifier GradientBoostingRegressor",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
        "HistGradientBoostingClassifier HistGradientBoostingRegressor"
    ),
    "sklearn.tree._classes": "DecisionTreeClassifier DecisionTreeRegressor ExtraTreeClassifier ExtraTreeRegressor",
})  # fmt: skip
# Settings that choose what is called or read: a cache on disk is unpickled, and a method is called by its name.
CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "memory": (None,),
    "stack_method_": (None, "predict_proba", "decision_function", "predict"),
}
